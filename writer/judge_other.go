//go:build !linux && !darwin && !windows

package writer

// Nothing can be seen here, so every verdict is Unknown: identities have no
// boot id.
var here = system{
	process: func(int, *Identity) sighting { return sighting{words: "not on this system"} },
	guard:   lookGuard,
}
