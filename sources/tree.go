package sources

// Tree identifies the files of a commit in a repository other than the fleet's.
// Trees are comparable.
type Tree struct {
	// Repository is a URL without credentials, query and fragment.
	Repository string
	// Commit is its full hash, in lower case.
	Commit string
}
