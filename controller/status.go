package controller

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ledgermq/ledgermq/controller/controllerpb"
)

// refusalCodes is the one table between refusals and gRPC codes; Server and Client read it in opposite directions.
var refusalCodes = []struct {
	kind error
	code codes.Code
}{
	{ErrInvalid, codes.InvalidArgument},
	{ErrNotFound, codes.NotFound},
	{ErrExists, codes.AlreadyExists},
	{ErrNotNow, codes.Aborted},
	{ErrNodeConflict, codes.PermissionDenied},
	{ErrUnregistered, codes.FailedPrecondition},
}

// notLeaderError is what a member that does not lead answers with.
type notLeaderError struct{ id, address string }

func (e *notLeaderError) Error() string {
	if e.id == "" {
		return "this controller does not lead, and knows no leader"
	}
	return fmt.Sprintf("this controller does not lead, %s at %s does", e.id, e.address)
}

// toStatus turns the error of a call into the one that travels.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	for _, r := range refusalCodes {
		if errors.Is(err, r.kind) {
			return status.Error(r.code, err.Error())
		}
	}
	var nl *notLeaderError
	if errors.As(err, &nl) {
		st, detailErr := status.New(codes.Unavailable, nl.Error()).
			WithDetails(&pb.NotLeader{LeaderId: nl.id, LeaderAddress: nl.address})
		if detailErr == nil {
			return st.Err()
		}
	}
	if errors.Is(err, errAwaitsRecovery) {
		st, detailErr := status.New(codes.Unavailable, err.Error()).WithDetails(&pb.AwaitsRecovery{})
		if detailErr == nil {
			return st.Err()
		}
	}
	return status.Error(codes.Unavailable, err.Error())
}

// awaitsRecovery tells whether err comes from a controller that waits for a recovery.
func awaitsRecovery(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if _, ok := d.(*pb.AwaitsRecovery); ok {
			return true
		}
	}
	return false
}

// fromStatus returns the refusal that err carries, or nil: the call may be tried elsewhere.
func fromStatus(err error) *RefusedError {
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, r := range refusalCodes {
		if st.Code() == r.code {
			return &RefusedError{Kind: r.kind, Text: st.Message()}
		}
	}
	return nil
}

// leaderHint returns the address in a NotLeader detail of err, or "".
func leaderHint(err error) string {
	for _, d := range status.Convert(err).Details() {
		if nl, ok := d.(*pb.NotLeader); ok {
			return nl.GetLeaderAddress()
		}
	}
	return ""
}
