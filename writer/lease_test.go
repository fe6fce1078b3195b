package writer

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/swampd/swampd/internal/format"
)

func fullLease() *Lease {
	return &Lease{
		Format: format.Version, MinReader: format.MinReader, Fence: 42,
		Session: uuid.MustParse("0195d3a0-7c1e-7000-8000-000000000001"), Released: true,
		Writer: "builder", Epoch: "3",
		Identity: &Identity{Hostname: "h", PIDNamespace: "pid:[1]", TimeNamespace: "time:[2]", BootID: "b", PID: 12, StartTime: "345"},
		Checkout: "/srv/<a>&b", Command: "swampd",
		Acquired: time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC), Renewed: time.Date(2026, 3, 1, 12, 0, 10, 0, time.UTC),
		TTLMillis: 30000, Beat: 9,
		Adoption: &Adoption{BeatMillis: 250, SelfFenceMillis: 750, SilenceMillis: 1000},
		Guard:    &Guard{Path: "/srv/.swamp/guard", Inode: 77, ID: "g"},
	}
}

func TestLeaseKeepsEveryField(t *testing.T) {
	want := fullLease()
	data, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeLease(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for f := range reflect.TypeFor[Lease]().Fields() {
		if f.Name != "Extra" && reflect.ValueOf(*want).FieldByIndex(f.Index).IsZero() {
			t.Errorf("this test does not set the field %s", f.Name)
		}
	}
}

func TestLeaseKeepsUnknownFields(t *testing.T) {
	data, err := json.Marshal(fullLease())
	if err != nil {
		t.Fatal(err)
	}
	// At every level; names that differ in case only are unknown ones too.
	for at, more := range map[string]string{
		`{"format"`: `{"new":{"a":[1,2]},"format"`, `"ttl_ms"`: `"Fence":7,"ttl_ms"`,
		`"identity":{`: `"identity":{"cgroup":"x",`, `"start_time"`: `"PID":1,"start_time"`,
		`"adoption":{`: `"adoption":{"n":null,`, `"guard":{`: `"guard":{"device":5,`,
	} {
		data = bytes.Replace(data, []byte(at), []byte(more), 1)
	}
	l, err := DecodeLease(data)
	if err != nil {
		t.Fatal(err)
	}
	if l.Fence != 42 || l.Identity.PID != 12 {
		t.Errorf("fence %d and pid %d were taken from fields of another name, want 42 and 12", l.Fence, l.Identity.PID)
	}
	again, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal(data, &want), json.Unmarshal(again, &got)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %s\nwant %s", again, data)
	}
}

func TestDecodeLeaseRefuses(t *testing.T) {
	good, err := fullLease().Encode()
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, new string) string {
		old, new = strings.Replace(old, `":`, `": `, 1), strings.Replace(new, `":`, `": `, 1)
		if !strings.Contains(string(good), old) {
			t.Fatalf("the record holds no %s", old)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for name, c := range map[string]struct {
		data string
		want error
	}{
		"nothing":           {"", format.ErrCorrupt},
		"no object":         {"[]", format.ErrCorrupt},
		"null":              {"null", format.ErrCorrupt},
		"no fields":         {"{}", format.ErrCorrupt},
		"truncated":         {string(good[:len(good)/2]), format.ErrCorrupt},
		"more behind":       {string(good) + "{}", format.ErrCorrupt},
		"no fence":          {edit(`"fence":42`, `"fence":0`), format.ErrCorrupt},
		"a negative fence":  {edit(`"fence":42`, `"fence":-1`), format.ErrCorrupt},
		"the last fence":    {edit(`"fence":42`, `"fence":18446744073709551615`), format.ErrCorrupt},
		"no session":        {edit(`"session":"0195d3a0-7c1e-7000-8000-000000000001"`, `"session":null`), format.ErrCorrupt},
		"no ttl":            {edit(`"ttl_ms":30000`, `"ttl_ms":0`), format.ErrCorrupt},
		"an endless ttl":    {edit(`"ttl_ms":30000`, `"ttl_ms":9000000000000000000`), format.ErrCorrupt},
		"a bad inner type":  {edit(`"pid":12`, `"pid":"12"`), format.ErrCorrupt},
		"no minimum reader": {edit(`"minimum_reader":3`, `"minimum_reader":0`), format.ErrCorrupt},
		"too long":          {edit(`"swampd"`, `"`+strings.Repeat("x", maxLease)+`"`), format.ErrCorrupt},
		"newer":             {edit(`"minimum_reader":3`, `"minimum_reader":4`), format.ErrUpgrade},
		"newer, all else different": {`{"minimum_reader":4,"fence":"of another type"}`,
			format.ErrUpgrade},
	} {
		t.Run(name, func(t *testing.T) {
			if l, err := DecodeLease([]byte(c.data)); !errors.Is(err, c.want) {
				t.Errorf("got %+v, %v; want an error that wraps %q", l, err, c.want)
			}
		})
	}
	if _, err := DecodeLease([]byte(edit(`"format":3`, `"format":4`))); err != nil {
		t.Errorf("a newer format that this program can read: %v", err)
	}
}

func TestEncodeRefusesWhatIsTooLong(t *testing.T) {
	l := fullLease()
	l.Command = strings.Repeat("x", maxLease)
	if _, err := l.Encode(); err == nil {
		t.Error("a lease of more than 1 MiB was encoded")
	}
}

func FuzzDecodeLease(f *testing.F) {
	full, err := fullLease().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(`{"format":3,"minimum_reader":3,"fence":1,"session":"0195d3a07c1e70008000000000000001","ttl_ms":1,"x":"<\u2028\ud800>","X":1,"identity":{}}`))
	f.Add([]byte(`{"minimum_reader":4}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := DecodeLease(data)
		if err != nil {
			if errors.Is(err, format.ErrCorrupt) == errors.Is(err, format.ErrUpgrade) {
				t.Fatalf("the error is neither of the two: %v", err)
			}
			return
		}
		once, err := l.Encode()
		if err != nil {
			return // longer than allowed, once its "<" are escaped
		}
		l2, err := DecodeLease(once)
		if err != nil {
			t.Fatalf("what was encoded does not decode: %v\n%s", err, once)
		}
		if len(l2.Extra) != len(l.Extra) {
			t.Fatalf("%d unknown fields, then %d", len(l.Extra), len(l2.Extra))
		}
		twice, err := l2.Encode()
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("not stable (%v):\n%s\n%s", err, once, twice)
		}
	})
}
