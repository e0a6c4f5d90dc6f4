package gocronhasp_test

import (
	"fmt"

	"github.com/go-co-op/gocron/v2"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/gocronhasp"
	"github.com/hasplock/hasp/hasptest"
)

func ExampleNewLocker() {
	client, err := hasp.New(hasptest.New().Backend()) // in earnest: hasp.Open(ctx, "redis://...")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronhasp.NewLocker(client)))
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan struct{})
	_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		gocron.NewTask(func() { fmt.Println("one of the machines writes the report"); close(done) }),
		gocron.WithName("nightly-report"))
	if err != nil {
		fmt.Println(err)
		return
	}
	s.Start()
	<-done
	fmt.Println(s.Shutdown())
	// Output:
	// one of the machines writes the report
	// <nil>
}
