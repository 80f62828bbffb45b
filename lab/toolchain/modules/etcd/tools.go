//go:build tools

// Package tools names what is built here, so that its dependencies stay pinned in go.mod and go.sum.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
