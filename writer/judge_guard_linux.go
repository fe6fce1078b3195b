package writer

import "github.com/swampd/swampd/internal/filelock"

// networkFilesystem names the kind of a filesystem that is on another machine.
// A variable for tests.
var networkFilesystem = filelock.NetworkFilesystem
