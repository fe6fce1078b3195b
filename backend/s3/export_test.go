package s3

// PartSizeFor is the size of the parts of a body of that size.
func (d *Driver) PartSizeFor(size int64) int64 { return d.partSize(size) }
