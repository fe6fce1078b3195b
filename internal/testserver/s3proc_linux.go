package testserver

import "syscall"

// dieWithParent makes the kernel kill the server when the thread that started
// it ends, which is why that thread is locked for as long as the server runs.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
