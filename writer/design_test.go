package writer

import (
	"os"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

// The lease that design/format.md shows, byte for byte: as this program writes it,
// as it reads it, and with the fields that a writer of today has.
func TestLeaseOfTheDesignIsReal(t *testing.T) {
	page, err := os.ReadFile("../design/format.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```json lease\n")
	shown, section, ok2 := strings.Cut(rest, "```")
	section, _, ok3 := strings.Cut(section, "\n## ")
	if !ok || !ok2 || !ok3 {
		t.Fatal(`format.md has no block "json lease"`)
	}
	want := &Lease{
		Format: format.Version, MinReader: format.MinReader, Fence: 3,
		Session: uuid.MustParse("db1baa7e-76cb-7c5c-a4ab-ac08c5dfc219"),
		Identity: &Identity{Hostname: "host-a", PIDNamespace: "pid:[4026531836]", TimeNamespace: "time:[4026531834]",
			BootID: "4f1c2f9e-6b0a-4d5b-9a2b-1f7f3c1f0a77", PID: 4711, StartTime: "81237"},
		Command:  "swampd put",
		Acquired: time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC), Renewed: time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC),
		TTLMillis: 30000, Beat: 2,
	}
	data, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if shown != string(data) {
		t.Errorf("format.md shows\n%sshould be\n%s", shown, data)
	}
	got, err := DecodeLease([]byte(shown))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wantFieldsOnPage(t, section)
	if runtime.GOOS != "linux" {
		return // less is known of a process there
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.mustAcquire(Options{Process: This()})
		defer w.mustClose(h)
		if got, want := names(string(w.bytes())), names(shown); !reflect.DeepEqual(got, want) {
			t.Errorf("a writer has the fields %q, format.md shows %q", got, want)
		}
	})
}

// wantFieldsOnPage compares the table of the page with the structs.
func wantFieldsOnPage(t *testing.T, section string) {
	t.Helper()
	var want []string
	var add func(prefix string, typ reflect.Type)
	add = func(prefix string, typ reflect.Type) {
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			if f.Type.Kind() == reflect.Pointer {
				add(name+".", f.Type.Elem())
			} else {
				want = append(want, prefix+name)
			}
		}
	}
	add("", reflect.TypeFor[Lease]())
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(section, -1) {
		got = append(got, m[1])
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("format.md describes the fields\n%q, they are\n%q", got, want)
	}
}

// names are the field names of a record, in their order.
func names(record string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^ +"(\w+)":`).FindAllStringSubmatch(record, -1) {
		all = append(all, m[1])
	}
	return all
}
