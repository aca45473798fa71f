//go:build !race

package remoting

// spoil does its work in tests under the race detector: see spoil_race.go.
func spoil([]byte) {}
