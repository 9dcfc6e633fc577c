package routers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// hanging is a backend that accepts requests and never responds.
type hanging struct{ *fakeBackend }

func (h hanging) Do(req *http.Request, _ llmserver.Token) (*http.Response, llmserver.Report, error) {
	<-req.Context().Done()
	return nil, llmserver.Report{}, context.Cause(req.Context())
}

// A replica that passes its health checks and responds to no request is ejected.
func TestRouterEjectsAReplicaThatHangsWhileItsSiblingsRespond(t *testing.T) {
	onEachPolicyClass(t, func(t *testing.T, build Builder) {
		synctest.Test(t, func(t *testing.T) {
			f := new(fleet)
			f.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
				fake := &fakeBackend{held: make(map[llmserver.Token]bool)}
				f.fakes = append(f.fakes, fake)
				if e.ID == "a" {
					return hanging{fake}, nil
				}
				return fake, nil
			}
			defer f.pool.Close()
			f.set(t, llmserver.Endpoint{ID: "a", URL: "http://a", Limit: 100, ProbeEvery: time.Second, ProbeTimeout: time.Second},
				llmserver.Endpoint{ID: "b", URL: "http://b", Limit: 100}, llmserver.Endpoint{ID: "c", URL: "http://c", Limit: 100})
			r := newWatchingRouter(f, build, roomy)
			var lost, moved atomic.Int64
			for i := range 200 {
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
				ctx, abort := context.WithCancelCause(ctx)
				sel, err := r.Choose(ctx, &Payload{Stream: true, SessionID: string(rune('a' + i%26)), Blocks: long(i, 3)})
				if err != nil {
					t.Fatal(err)
				}
				sel.OnSilence(abort)
				go func() {
					defer stop()
					defer sel.Release()
					defer func() {
						if sel.Outcome().Silent && sel.Replica() != f.replicas[0] {
							t.Errorf("%s is reported as silent", sel.Replica().ID())
						}
					}()
					req := (&http.Request{}).WithContext(ctx)
					resp, err := sel.Dispatch(req)
					switch {
					case err == nil:
						io.ReadAll(resp.Body)
					case errors.Is(err, llmserver.ErrSilent):
						moved.Add(1)
					default:
						lost.Add(1)
					}
				}()
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			synctest.Wait()
			if f.replicas[0].Ejections() != 1 || moved.Load() == 0 {
				t.Errorf("%d ejections, and %d requests were ended for a retry", f.replicas[0].Ejections(), moved.Load())
			}
			time.Sleep(time.Minute)
			if n := lost.Load(); n > 3 { // trials without another response afterwards
				t.Errorf("%d requests waited until their clients left", n)
			}
		})
	})
}
