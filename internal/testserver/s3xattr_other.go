//go:build !linux

package testserver

func hasXattr(string) bool { return false }
