package testserver_test

import (
	"testing"

	"github.com/swampd/swampd/backend"
	"github.com/swampd/swampd/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

func TestS3StartsAndStoresAnObject(t *testing.T) {
	srv := testserver.S3(t)
	b := srv.Open(t, srv.NewBucket(t))
	info, err := b.Create(t.Context(), "data/x", backend.Bytes([]byte("hello")))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", info)
	o, err := b.Get(t.Context(), "data/x", backend.GetOptions{Offset: 2})
	t.Logf("%+v %v", o, err)
}
