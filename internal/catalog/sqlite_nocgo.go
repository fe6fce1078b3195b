//go:build !cgo

package catalog

// HasCgo says whether this program was built with cgo, without which there is
// no SQLite: Open then fails with ErrNoCgo.
const HasCgo = false

func classify(error) fault { return faultOther }
