// Package controllerpb is the generated wire code of the controller: its service for nodes and tools, and the service that
// controllers use among themselves. It holds no rules of its own: package controller checks every field. Messages may be read
// from any goroutine while nobody changes them. controller.proto documents every message; read it first.
package controllerpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative controller.proto
