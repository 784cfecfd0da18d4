// Package testscripts holds the scenarios of gitopsd, one *.txtar each, and the
// harness that runs them: on real control planes, a real Git server and a real
// OCI registry, with gitopsd and kubectl as processes of their own. README.md
// documents the commands of scripts.
//
// The harness is in the tests of this package. main_test.go supervises the test
// process, scripts_test.go sets up each script, and command_test.go has the table of
// commands, which are implemented in files named after their subjects. planes_test.go
// lends control planes to scripts, and objects_test.go lists and removes the objects
// in them. crash_test.go, renovate_test.go and workflow_test.go have tests without
// scripts.
//
// The packages below are shared with the tests of other packages, the demo and the
// benchmarks. Servers are devcluster (control planes), etcdserver, gitserver, registry
// and sigstore; packages are made by runtimeimage and upstream; and confined,
// etcdclient, load and webhookserver are programs that scripts run. await is for tests that
// wait.
package testscripts
