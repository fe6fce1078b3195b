// Package devtools pins the programs that tests start and that are no part of
// swampd: their dependencies stay out of the main module. internal/testserver
// builds what it needs from here, once, into the user's cache directory.
package devtools
