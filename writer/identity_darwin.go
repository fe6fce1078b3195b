package writer

import "golang.org/x/sys/unix"

// fillIdentity asks the kernel. There are no namespaces here.
func fillIdentity(id *Identity) {
	id.BootID, _ = unix.Sysctl("kern.bootsessionuuid")
	id.StartTime, _ = ownStart()
}
