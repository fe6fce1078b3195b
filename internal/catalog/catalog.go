// Package catalog is the local replica of a datastore's commit log: commits.db,
// a SQLite file that answers what the log says without asking the store.
//
// It is a cache. All of it comes from records and checkpoints, so deleting the
// file loses nothing, not even while processes work with it: they start with an
// empty one. Whatever is wrong with a file (damage, an older schema, another
// datastore's) has the same cure, and the caller meets it as a State with Head 0.
// Only a file of a newer schema is left alone: ErrUpgrade.
//
// Records are folded in the order of their slots, each as a whole or not at all.
// A record is the truth of the log once it is in the store: what in it cannot be
// (a place in a dead object, a version dropped that is the current one) is
// written down as a Defect, and the records after it are folded all the same.
//
// Any number of processes may share a file. A Snapshot is one state, whatever
// others do meanwhile; Updates wait for each other. No call waits longer than
// its context allows.
//
// The cost of a fold grows with the record, not with what is stored, and memory
// with neither: large records come as lists of blocks, checkpoints as shards, and
// iterators read a page of rows at a time.
package catalog
