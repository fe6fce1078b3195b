package gcs_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/swampd/swampd/backend"
	_ "github.com/swampd/swampd/backend/gcs"
	"github.com/swampd/swampd/internal/backendtest"
	"github.com/swampd/swampd/internal/testserver"
)

func TestConformance(t *testing.T) {
	srv := testserver.GCS(t)
	backendtest.Run(t, backendtest.Harness{
		New: func(t testing.TB) func() *backend.Bucket {
			storeURL := srv.NewBucket(t)
			return func() *backend.Bucket {
				b, err := backend.Open(t.Context(), storeURL)
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
		},
		Dates:     true,
		SlowRaces: srv.External(),
		Large:     true,
		IgnoreLeaks: []goleak.Option{
			// A connection of the server inside this process.
			goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		},
	})
}
