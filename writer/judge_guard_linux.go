package writer

import (
	"os"

	"golang.org/x/sys/unix"
)

// networkFilesystems are those where a lock that another machine holds may not
// show. FUSE is among them: what is behind it is not known.
var networkFilesystems = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC:  "SMB",
	unix.V9FS_MAGIC:        "9p",
	unix.FUSE_SUPER_MAGIC:  "FUSE",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.AFS_FS_MAGIC:      "AFS",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x01161970:             "GFS2",
	0x0bd00bd0:             "Lustre",
	0x47504653:             "GPFS",
	0x786f4256:             "VirtualBox",
	0xbacbacbc:             "VMware",
}

// networkFilesystem names the kind of a filesystem that is on another machine.
func networkFilesystem(f *os.File) (string, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return "", &os.PathError{Op: "fstatfs", Path: f.Name(), Err: err}
	}
	return networkFilesystems[uint32(stat.Type)], nil
}
