// Package testserver starts the real servers that tests run against, and the
// HTTP proxy that makes their answers go wrong.
//
// Everything listens on loopback, on a port that the system picked. A server is
// started by the first test that asks for it, shared by the tests of one
// process, and stopped by its process handle when the last of them ends (or at
// the end of Main). On Linux it also dies with the test process, however that
// ends. With SWAMPD_TEST_S3_URL (SWAMPD_TEST_GCS_URL) set, tests run against
// that store instead, each below a prefix of its own, and nothing is started.
package testserver
