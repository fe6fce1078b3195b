package backendtest

import (
	"errors"
	"time"

	"github.com/swampd/swampd/backend"
)

// slack is how far two times of one store may lie apart for the same moment:
// HTTP dates are whole seconds, and file systems have a coarse clock.
const slack = 2 * time.Second

var infoTests = []subtest{
	{"size, version and times are the same in every answer", func(e *env) {
		data := noise(12_345, 1)
		made := e.create(e.a, "_control/x", data)
		_, first := e.get(e.b, "_control/x", backend.GetOptions{})
		for i := range 4 {
			_, obj := e.get(e.handle(i), "_control/x", backend.GetOptions{Offset: int64(i) * 100})
			if obj.Size != 12_345 || obj.Version != made.Version || !obj.Modified.Equal(first.Modified) {
				e.Errorf("get: Size %d, Version %q, Modified %v; create said %d, %q, the first get %v",
					obj.Size, obj.Version, obj.Modified, made.Size, made.Version, first.Modified)
			}
		}
		if d := first.Modified.Sub(made.Modified); d.Abs() > slack {
			e.Errorf("Modified: create said %v, get says %v", made.Modified, first.Modified)
		}
		// The object is what it was after others came and went.
		e.create(e.a, "_control/y", data)
		e.remove(e.a, "_control/y")
		if _, obj := e.get(e.a, "_control/x", backend.GetOptions{}); obj.Version != made.Version || !obj.Modified.Equal(first.Modified) {
			e.Errorf("later: Version %q, Modified %v, was %q, %v", obj.Version, obj.Modified, made.Version, first.Modified)
		}
	}},
	{"Modified is when it was made, by the clock that Now shows", func(e *env) {
		before := e.create(e.a, "data/before", nil).Now
		e.create(e.a, "data/x", []byte("x"))
		v := e.create(e.b, "_control/x", []byte("x")).Version
		e.replace(e.b, "_control/x", []byte("y"), v)
		_, after := e.get(e.b, "data/before", backend.GetOptions{})
		for _, k := range []string{"data/x", "_control/x"} {
			_, obj := e.get(e.b, k, backend.GetOptions{})
			if obj.Now.IsZero() {
				e.Fatalf("%s: Now is zero", k)
			}
			if obj.Modified.After(obj.Now.Add(slack)) {
				e.Errorf("%s: Modified %v is after Now %v", k, obj.Modified, obj.Now)
			}
			if obj.Modified.Before(before.Add(-slack)) || obj.Modified.After(after.Now.Add(slack)) {
				e.Errorf("%s: Modified %v is not between %v and %v", k, obj.Modified, before, after.Now)
			}
		}
	}},
	{"Now goes forward", func(e *env) {
		last := e.create(e.a, "data/x", nil).Now
		for i := range 10 {
			_, obj := e.get(e.handle(i), "data/x", backend.GetOptions{})
			if obj.Now.Before(last.Add(-slack)) {
				e.Errorf("Now is %v, was %v", obj.Now, last)
			}
			last = obj.Now
		}
	}},
	{"a replaced record has a later Modified", func(e *env) {
		made := e.create(e.a, "_control/x", []byte("0"))
		_, last := e.get(e.a, "_control/x", backend.GetOptions{})
		v := made.Version
		for i := range 3 {
			v = e.replace(e.handle(i), "_control/x", []byte{byte('1' + i)}, v).Version
			_, obj := e.get(e.handle(i+1), "_control/x", backend.GetOptions{})
			if obj.Modified.Before(last.Modified) {
				e.Errorf("Modified is %v, was %v before the replace", obj.Modified, last.Modified)
			}
			last = obj
		}
	}},
	{"Date is there if the store promises it, else nowhere", testDates},
}

func testDates(e *env) {
	check := func(what string, date, now time.Time) {
		e.Helper()
		switch {
		case !e.h.Dates && !date.IsZero():
			e.Errorf("%s: Date is %v, and this store has none", what, date)
		case e.h.Dates && date.IsZero():
			e.Errorf("%s: no Date", what)
		case e.h.Dates && now.Sub(date).Abs() > slack:
			e.Errorf("%s: Date is %v, Now was %v", what, date, now)
		}
	}
	made := e.create(e.a, "_control/x", []byte("x"))
	check("create", made.Date, made.Now)
	_, obj := e.get(e.b, "_control/x", backend.GetOptions{})
	check("get", obj.Date, obj.Now)
	_, obj = e.get(e.b, "_control/x", backend.GetOptions{Offset: 100})
	check("get of a range beyond the end", obj.Date, obj.Now)
	next := e.replace(e.a, "_control/x", []byte("y"), made.Version)
	check("replace", next.Date, next.Now)

	_, err := e.a.Get(e.ctx, "data/nothing", backend.GetOptions{})
	check("get of a missing key", backend.Date(err), next.Now)
	var berr *backend.Error
	if errors.As(err, &berr) {
		check("get of a missing key, Error.Date", berr.Date, next.Now)
	}
	_, err = e.a.Create(e.ctx, "_control/x", backend.Bytes(nil))
	check("create over an object", backend.Date(err), next.Now)
	_, err = e.a.Replace(e.ctx, "_control/x", backend.Bytes(nil), made.Version)
	check("replace of a stale version", backend.Date(err), next.Now)
	_, err = e.a.Get(e.ctx, "_control/x", backend.GetOptions{IfVersion: made.Version})
	check("get of a stale version", backend.Date(err), next.Now)
}
