// The etcd server, as `neve etcd install` builds it: nothing but etcd's own main function.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
