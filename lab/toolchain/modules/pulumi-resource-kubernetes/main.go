// Command pulumi-resource-kubernetes serves the Kubernetes provider of the pinned module.
//
// The two JSON files are copied from that module beside this file when it is built: too large to commit, and they must
// match the provider's code.
package main

import (
	_ "embed"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
)

//go:embed schema.json
var schema []byte

//go:embed terraform-mapping.json
var terraformMapping []byte

// version is set at link time.
var version string

func main() {
	provider.Serve("kubernetes", version, schema, terraformMapping)
}
