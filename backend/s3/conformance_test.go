package s3_test

import (
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/backendtest"
	"github.com/swampd/swampd/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestConformance runs the contract of package backend against a real store.
func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(t testing.TB) func() *backend.Bucket {
			srv := testserver.S3(t)
			storeURL := srv.NewBucket(t)
			return func() *backend.Bucket { return srv.Open(t, storeURL) }
		},
		Dates:           true,
		ContentVersions: true,
		LostAnswers:     true,
		Large:           true,
		IgnoreLeaks:     testserver.LeakOptions(),
	})
}
