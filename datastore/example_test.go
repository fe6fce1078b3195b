package datastore_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	_ "github.com/swampd/swampd/backend/fs" // for directories; also backend/s3 and backend/gcs
	"github.com/swampd/swampd/datastore"
)

// A datastore in a directory: put two files, change one, read both versions.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "swampd-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// The address may as well be s3://bucket/prefix or gs://bucket/prefix.
	store, err := datastore.Init(ctx, filepath.Join(dir, "store"), &datastore.Options{StateDir: filepath.Join(dir, "state")})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	put := func(message string, files map[string]string) uint64 {
		batch, err := store.Begin(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer batch.Discard()
		for path, content := range files {
			if _, err := batch.Put(ctx, path, strings.NewReader(content), nil); err != nil {
				log.Fatal(err)
			}
		}
		commit, err := batch.Commit(ctx, message)
		if err != nil {
			log.Fatal(err)
		}
		return commit.Slot
	}
	first := put("first", map[string]string{"notes/a.txt": "one", "notes/b.txt": "two"})
	put("second", map[string]string{"notes/a.txt": "three"})

	for v, err := range store.List(ctx, &datastore.ListOptions{Prefix: "notes/"}) {
		if err != nil {
			log.Fatal(err)
		}
		now, err := store.Get(ctx, v.Path, nil)
		if err != nil {
			log.Fatal(err)
		}
		then, err := store.Get(ctx, v.Path, &datastore.ReadOptions{At: first})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s, was %s\n", v.Path, now, then)
	}
	// Output:
	// notes/a.txt: three, was one
	// notes/b.txt: two, was two
}
