//go:build !linux

package main

import (
	"os"
	"time"
)

func ownCPU() (time.Duration, bool)           { return 0, false }
func postmasterOf(int) int                    { return 0 }
func serverCPU(int) (_ time.Duration, _ bool) { return 0, false }
func backendCPU(int) (time.Duration, bool)    { return 0, false }

func maxRSS(*os.ProcessState) (mib float64, ok bool) { return 0, false }
