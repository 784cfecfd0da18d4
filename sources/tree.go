package sources

// Tree names the files of one commit of a repository that is not the fleet's.
// Trees are comparable.
type Tree struct {
	// Repository is a URL without credentials, query and fragment.
	Repository string
	// Commit is its full hash, in lower case.
	Commit string
}
