//go:build !linux

package catalog

import "time"

func threadCPU() time.Duration { return 0 }
