//go:build !race

package backendtest

// raceDetector says that the tests run with -race, which takes several times
// the memory and the time.
const raceDetector = false
