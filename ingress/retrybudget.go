package ingress

import "sync/atomic"

// The budget follows Finagle's RetryBudget (source: com.twitter.finagle.service.RetryBudget): a
// share of the recent requests, and a reserve for times of few requests.
const (
	retryShare   = 5   // requests that pay for one retry
	retryReserve = 20  // retries that a new budget allows
	maxRetries   = 100 // retries saved up at most, so that only recent requests count
)

// A retryBudget bounds the retries of failures that other replicas may share, so that a fault of
// the whole fleet does not double the load. The methods may be called from any goroutine.
type retryBudget struct{ balance atomic.Int64 } // in requests

func newRetryBudget() *retryBudget {
	b := new(retryBudget)
	b.balance.Store(retryReserve * retryShare)
	return b
}

// deposit adds one request.
func (b *retryBudget) deposit() {
	if b.balance.Load() < maxRetries*retryShare {
		b.balance.Add(1) // concurrent calls may exceed the maximum by a few
	}
}

// withdraw takes one retry, and reports whether the budget allows one.
func (b *retryBudget) withdraw() bool {
	for {
		balance := b.balance.Load()
		if balance < retryShare {
			return false
		}
		if b.balance.CompareAndSwap(balance, balance-retryShare) {
			return true
		}
	}
}
