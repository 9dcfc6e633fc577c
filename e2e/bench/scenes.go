package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"berth/e2e/scenes"
)

const (
	sceneMarker  = "scenes: other routers" // of the section of a page
	sceneWorkers = 5                       // scenes at once
)

// scenePolicies are the policies of other routers to play scenes with: the default, and the one
// that shares requests evenly.
var scenePolicies = []string{"cache_aware", "round_robin"}

// scenePlay is one scene with one router and policy.
type scenePlay struct {
	router         router
	python, policy string
	fault          scenes.Fault
	column         int
}

// playScenes plays all scenes with each router that is installed or can be installed, prints the
// table and writes it to a page, if one is given.
func playScenes(page string) error {
	var columns []scenes.Column
	var plays []scenePlay
	for _, r := range routers {
		python, err := r.ensureInstalled()
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: skipping %s: installation failed: %v\n", r.name, err)
			continue
		}
		for _, policy := range scenePolicies {
			columns = append(columns, scenes.Column{Title: strings.ReplaceAll(r.pin, "==", " ") + ", " + policy, Results: map[scenes.Fault]scenes.Result{}})
			for _, fault := range scenes.All {
				plays = append(plays, scenePlay{r, python, policy, fault, len(columns) - 1})
			}
		}
	}
	playAll(plays, columns)
	table := scenes.Table(columns)
	fmt.Println(table)
	if page == "" {
		return nil
	}
	return scenes.WriteSection(page, sceneMarker, table)
}

// playAll plays scenes, some at once, and sets their results. It reports those that could not be
// played on standard error.
func playAll(plays []scenePlay, columns []scenes.Column) {
	next := make(chan scenePlay, len(plays))
	for _, p := range plays {
		next <- p
	}
	close(next)
	var mu sync.Mutex
	var playing sync.WaitGroup
	for range sceneWorkers {
		playing.Go(func() {
			for p := range next {
				r, err := p.play()
				mu.Lock()
				if err != nil {
					fmt.Fprintf(os.Stderr, "bench: %s %s: %s: %v\n", p.router.name, p.policy, p.fault, err)
				} else {
					fmt.Fprintf(os.Stderr, "%s %s: %s: %v\n", p.router.name, p.policy, p.fault, r)
					columns[p.column].Results[p.fault] = r
				}
				mu.Unlock()
			}
		})
	}
	playing.Wait()
}

// play starts engines and the router, and plays the scene.
func (p scenePlay) play() (scenes.Result, error) {
	fleet, err := scenes.StartFleet(p.fault)
	if err != nil {
		return scenes.Result{}, err
	}
	defer fleet.Close()
	addresses, err := freeAddresses(2)
	if err != nil {
		return scenes.Result{}, err
	}
	t := &target{name: p.router.name, address: addresses[0], command: p.router.arguments(p.python, addresses[0], addresses[1], p.policy, fleet.URLs()...)}
	if err := t.start(); err != nil {
		return scenes.Result{}, err
	}
	defer t.stop()
	return scenes.Run(context.Background(), "http://"+t.address, fleet, scenes.Full)
}
