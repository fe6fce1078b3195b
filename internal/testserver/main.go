package testserver

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package with its servers kept from the first test
// that needs them to the end, and exits the process. A package without it works
// as well; its servers then start anew whenever no test holds them.
//
//	func TestMain(m *testing.M) { testserver.Main(m) }
func Main(m *testing.M) {
	sharedS3.keep(true)
	code := m.Run()
	sharedS3.keep(false)
	os.Exit(code)
}

// LeakOptions are what goleak must leave out of account: the goroutine that
// owns a server that goes on serving other tests.
func LeakOptions() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/swampd/swampd/internal/testserver.(*s3Process).run"),
	}
}
