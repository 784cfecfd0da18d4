// Package testscripts holds the scenarios of gitopsd, one *.txtar each, and the
// harness that runs them: on real control planes, a real Git server and a real
// OCI registry, with gitopsd and kubectl as processes of their own. README.md
// documents the commands that scripts are written in.
//
// The harness is in the tests of this package: main_test.go has the process as
// a whole, scripts_test.go what a script gets, command_test.go the table of
// commands, which the files named after what they handle implement.
//
// Below are what the harness and other packages' tests run against: devcluster
// (control planes), gitserver, registry, and upstream (packages made of
// well-known projects).
package testscripts
