package writer

import (
	"os"
	"reflect"
	"runtime"
	"testing"
)

func TestSelfIsThisProcess(t *testing.T) {
	id := Self()
	if host, _ := os.Hostname(); id.PID != os.Getpid() || id.Hostname != host {
		t.Errorf("got %+v", id)
	}
	if runtime.GOOS == "linux" && (id.PIDNamespace == "" || id.TimeNamespace == "" || id.BootID == "" || id.StartTime == "") {
		t.Errorf("parts are missing: %+v", id)
	}
	if again := Self(); !reflect.DeepEqual(id, again) {
		t.Errorf("got %+v, then %+v", id, again)
	}
}

func TestTheBootClockGoesForward(t *testing.T) {
	before := bootClock()
	if after := bootClock(); before <= 0 || after < before {
		t.Errorf("got %v, then %v", before, after)
	}
}
