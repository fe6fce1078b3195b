package main

import "github.com/swampd/swampd/internal/catalog"

// needCgo refuses to begin in a program that was built without cgo: the local
// catalog is SQLite, which is C.
func needCgo() error {
	if catalog.HasCgo {
		return nil
	}
	return &refusal{
		kind: "no-cgo", text: "this swampd was built without cgo, which its local catalog (SQLite) needs",
		hint: "build it with CGO_ENABLED=1 and a C compiler",
	}
}
