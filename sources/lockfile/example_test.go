package lockfile_test

import (
	"fmt"

	"gitopsd.dev/sources/lockfile"
)

// A cluster that selects another version changes one line of the lock. The records
// of the old version stay, for a rollback, until Tidy removes them.
func Example() {
	lock, err := lockfile.Parse("clusters.lock", []byte(
		`@dev reg.example.org/acme/widgets v1.0.0
@prod reg.example.org/acme/widgets v1.0.0
reg.example.org/acme/widgets v1.0.0 sha256:209b9fd995ec0a2bd4aee5b5b9b3e0a7b2b9b0c6c4f7d0b6b8d6c1f8f6a7d001
reg.example.org/acme/widgets v1.1.0 sha256:7b4e9f5d0a1c2e3f4a5b6c7d8e9f0a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6e7f
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	lock.Select("dev", []lockfile.Selection{{Cluster: "dev", Repository: "reg.example.org/acme/widgets", Version: "v1.1.0"}})
	for _, cluster := range lock.Clusters() {
		for _, s := range lock.Selections(cluster) {
			digest, _ := lock.Digest(s.Repository, s.Version)
			fmt.Println(cluster, s.Version, digest.Short())
		}
	}
	fmt.Print(string(lock.Format()))
	// Output:
	// dev v1.1.0 7b4e9f5d0a1c
	// prod v1.0.0 209b9fd995ec
	// @dev reg.example.org/acme/widgets v1.1.0
	// @prod reg.example.org/acme/widgets v1.0.0
	// reg.example.org/acme/widgets v1.0.0 sha256:209b9fd995ec0a2bd4aee5b5b9b3e0a7b2b9b0c6c4f7d0b6b8d6c1f8f6a7d001
	// reg.example.org/acme/widgets v1.1.0 sha256:7b4e9f5d0a1c2e3f4a5b6c7d8e9f0a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6e7f
}
