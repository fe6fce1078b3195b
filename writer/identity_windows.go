package writer

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// fillIdentity asks the system. There are no namespaces here; in a container,
// which sees only some of the processes and shares the rest of the identity
// with its neighbours, the boot stays unknown.
func fillIdentity(id *Identity) {
	id.StartTime, _ = ownStart()
	if inContainer() {
		return
	}
	guid, err := machineGUID()
	if err != nil {
		return
	}
	if boot, err := bootTime(); err == nil {
		id.BootID = fmt.Sprintf("%s/%d", guid, boot)
	}
}

// inContainer is true when in doubt.
func inContainer() bool {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Control`, registry.QUERY_VALUE)
	if err != nil {
		return true
	}
	defer k.Close()
	_, _, err = k.GetValue("ContainerType", nil)
	return !errors.Is(err, registry.ErrNotExist)
}

func machineGUID() (string, error) {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Cryptography`, registry.QUERY_VALUE|registry.WOW64_64KEY)
	if err != nil {
		return "", err
	}
	defer k.Close()
	guid, _, err := k.GetStringValue("MachineGuid")
	if err == nil && guid == "" {
		err = errors.New("no MachineGuid")
	}
	return guid, err
}

// bootTime is when the machine was started, in units of 100 ns. The system moves
// it when the clock is set, and keeps count of by how much.
func bootTime() (int64, error) {
	var t struct {
		boot, current, zone int64
		zoneID, _           uint32
		bootBias, _         uint64
	}
	if err := windows.NtQuerySystemInformation(windows.SystemTimeOfDayInformation, unsafe.Pointer(&t), uint32(unsafe.Sizeof(t)), nil); err != nil {
		return 0, err
	}
	if t.boot == 0 {
		return 0, errors.New("no boot time")
	}
	return t.boot - int64(t.bootBias), nil
}
