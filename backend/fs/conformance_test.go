package fs_test

import (
	"testing"

	"github.com/swampd/swampd/backend"
	_ "github.com/swampd/swampd/backend/fs"
	"github.com/swampd/swampd/internal/backendtest"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(t testing.TB) func() *backend.Bucket {
			dir := t.TempDir()
			return func() *backend.Bucket {
				b, err := backend.Open(t.Context(), dir)
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
		},
		Large: true,
	})
}
