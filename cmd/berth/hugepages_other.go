//go:build !linux

package main

// growInHugePages does nothing: only Linux takes the advice.
func growInHugePages(int) {}
