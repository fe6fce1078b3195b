package testserver

import "golang.org/x/sys/unix"

// hasXattr says whether the server can keep an object's metadata beside its
// file in dir.
func hasXattr(dir string) bool {
	return unix.Setxattr(dir, "user.swampd-test", []byte("1"), 0) == nil
}
