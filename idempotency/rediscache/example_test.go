package rediscache_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onlyonce/onlyonce/idempotency/rediscache"
)

// A Cache is made from a go-redis client and passed to idempotency.Config.Cache, together with a
// Sealer. This example calls it directly, as the layer does with sealed entries.
func ExampleNew() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	cache, err := rediscache.New(client, "payments-api:")
	if err != nil {
		fmt.Println(err)
		return
	}

	id := [16]byte{0xab, 15: 0xcd}
	fmt.Println("put:", cache.Put(ctx, id, []byte("a sealed answer"), 5*time.Minute))
	entry, err := cache.Get(ctx, id)
	fmt.Printf("get: %q %v\n", entry, err)
	fmt.Println("delete:", cache.Delete(ctx, id))
	entry, err = cache.Get(ctx, id)
	fmt.Printf("get: %q %v\n", entry, err)

	_, err = rediscache.New(client, "")
	fmt.Println(errors.Is(err, rediscache.ErrConfig), err)
	// Output:
	// put: <nil>
	// get: "a sealed answer" <nil>
	// delete: <nil>
	// get: "" <nil>
	// true rediscache: invalid configuration: prefix: has 0 bytes: must have 1 to 255
}
