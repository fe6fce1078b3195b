package memory_test

import (
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/backend/memory"
	"github.com/swampd/swampd/internal/backendtest"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(testing.TB) func() *backend.Bucket {
			return memory.New(nil).Bucket
		},
		Dates: true,
	})
}

func TestConformanceWithoutDates(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(testing.TB) func() *backend.Bucket {
			return memory.New(&memory.Options{NoDate: true}).Bucket
		},
	})
}
