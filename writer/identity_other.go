//go:build !linux && !darwin && !windows

package writer

// fillIdentity adds nothing: hostname and pid are all that is known here.
func fillIdentity(*Identity) {}
