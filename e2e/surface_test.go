package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/tidwall/gjson"
)

// mediaReplica is a replica with stored responses, audio and images. Its model is named served.
type mediaReplica struct {
	name string

	mu     sync.Mutex
	stored map[string]bool
}

func (s *mediaReplica) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case path == "/health":
	case path == "/v1/responses":
		body, _ := io.ReadAll(r.Body)
		s.createResponse(w, body)
	case strings.HasPrefix(path, "/v1/responses/"):
		s.handleStored(w, r)
	case path == "/v1/audio/transcriptions":
		s.transcribe(w, r)
	case path == "/v1/audio/speech":
		w.Header().Set("Content-Type", "audio/mpeg")
		w.Write(bytes.Repeat([]byte{0xff, 0, '\r', '\n'}, 100_000))
	case path == "/v1/images/generations":
		writeJSON(w, `{"created":1,"data":[{"b64_json":"aGk="}]}`)
	default:
		http.NotFound(w, r)
	}
}

func responseObject(id, status string) string {
	return `{"id":"` + id + `","object":"response","created_at":1,"status":"` + status + `","model":"served","output":[]}`
}

// createResponse creates a response. The previous response, if any, must be stored on this replica.
func (s *mediaReplica) createResponse(w http.ResponseWriter, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := gjson.GetBytes(body, "previous_response_id").String()
	if before != "" && !s.stored[before] || gjson.GetBytes(body, "model").String() != "served" {
		w.WriteHeader(http.StatusNotFound)
		writeJSON(w, `{"error":{"message":"not here","type":"NotFoundError","param":null,"code":404}}`)
		return
	}
	id := fmt.Sprintf("resp_%s%d", s.name, len(s.stored))
	s.stored[id] = true
	if !gjson.GetBytes(body, "stream").Bool() {
		writeJSON(w, responseObject(id, "completed"))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i, kind := range []string{"created", "completed"} {
		fmt.Fprintf(w, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%d,\"response\":%s}\n\n", kind, kind, i, responseObject(id, kind))
		w.(http.Flusher).Flush()
	}
}

// handleStored serves the operations on stored responses.
func (s *mediaReplica) handleStored(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/responses/"), "/")
	switch {
	case !s.stored[id]:
		w.WriteHeader(http.StatusNotFound)
		writeJSON(w, `{"error":{"message":"gone","type":"NotFoundError","param":null,"code":404}}`)
	case r.Method == http.MethodDelete:
		delete(s.stored, id)
		writeJSON(w, `{"id":"`+id+`","object":"response","deleted":true}`)
	case rest == "cancel":
		writeJSON(w, responseObject(id, "cancelled"))
	case rest == "input_items":
		writeJSON(w, `{"object":"list","data":[{"id":"msg_`+id+`","type":"message","role":"user","content":[]}],"has_more":false}`)
	default:
		writeJSON(w, responseObject(id, "completed"))
	}
}

// transcribe responds with the size of the received file and the name of the model.
func (s *mediaReplica) transcribe(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text := fmt.Sprintf("%d bytes for %s", r.MultipartForm.File["file"][0].Size, r.FormValue("model"))
	if r.FormValue("stream") != "true" {
		writeJSON(w, `{"text":"`+text+`"}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"type\":\"transcript.text.delta\",\"delta\":%q}\n\ndata: {\"type\":\"transcript.text.done\",\"text\":%q}\n\n", text, text)
}

// serveMediaReplicas serves the model media on three replicas and returns a client.
func serveMediaReplicas(t *testing.T) openai.Client {
	var list []string
	for _, name := range []string{"a", "b", "c"} {
		server := httptest.NewServer(&mediaReplica{name: name, stored: map[string]bool{}})
		t.Cleanup(server.Close)
		list = append(list, `{url: "`+server.URL+`/v1"}`) // with /v1, like the base URL of an OpenAI client
	}
	b := serve(t, loopbackConfig+"llm_configs:\n- model_loading_config: {model_id: media}\n  served_model_name: served\n  replicas: ["+strings.Join(list, ", ")+"]\n")
	return newOfficialClient(&sdkServer{berth: b})
}

func TestStoredResponsesAreFoundByTheOfficialGoSDK(t *testing.T) {
	t.Parallel()
	client, ctx := serveMediaReplicas(t), t.Context()
	input := responses.ResponseNewParamsInputUnion{OfString: openai.String("Hello")}
	for range 6 { // round robin sends each to another replica
		first, err := client.Responses.New(ctx, responses.ResponseNewParams{Model: "media", Input: input})
		if err != nil {
			t.Fatal(err)
		}
		stream := client.Responses.NewStreaming(ctx, responses.ResponseNewParams{Model: "media", Input: input, PreviousResponseID: openai.String(first.ID)})
		var last string
		for stream.Next() {
			last = stream.Current().Response.ID
		}
		if err := stream.Err(); err != nil || last[:6] != first.ID[:6] {
			t.Fatalf("the response after %s is %q: %v", first.ID, last, err)
		}
		if got, err := client.Responses.Get(ctx, last, responses.ResponseGetParams{}); err != nil || got.ID != last {
			t.Errorf("get: %v, %v", got, err)
		}
		if items, err := client.Responses.InputItems.List(ctx, last, responses.InputItemListParams{}); err != nil || items.Data[0].ID != "msg_"+last {
			t.Errorf("input items: %v, %v", items, err)
		}
		if got, err := client.Responses.Cancel(ctx, last); err != nil || got.Status != "cancelled" {
			t.Errorf("cancel: %v, %v", got, err)
		}
		if err := client.Responses.Delete(ctx, last); err != nil {
			t.Errorf("delete: %v", err)
		}
		_, err = client.Responses.Get(ctx, last, responses.ResponseGetParams{})
		if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != http.StatusNotFound {
			t.Errorf("get after delete: %v", err)
		}
	}
}

func TestOfficialGoSDKSendsAudioAndGetsSpeechAndImages(t *testing.T) {
	t.Parallel()
	client, ctx := serveMediaReplicas(t), t.Context()
	const size = 3 << 20
	speech := func() io.Reader { return bytes.NewReader(bytes.Repeat([]byte("\r\n--\x00"), size/5)) }
	want := fmt.Sprint(size/5*5, " bytes for served")
	transcription, err := client.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{File: openai.File(speech(), "a.wav", "audio/wav"), Model: "media"})
	if err != nil || transcription.Text != want {
		t.Errorf("transcription %q, %v", transcription.Text, err)
	}
	stream := client.Audio.Transcriptions.NewStreaming(ctx, openai.AudioTranscriptionNewParams{File: openai.File(speech(), "a.wav", "audio/wav"), Model: "media"})
	var text string
	for stream.Next() {
		text = stream.Current().Text
	}
	if err := stream.Err(); err != nil || text != want {
		t.Errorf("streamed transcription %q, %v", text, err)
	}
	audio, err := client.Audio.Speech.New(ctx, openai.AudioSpeechNewParams{Input: "Hello", Model: "media", Voice: openai.AudioSpeechNewParamsVoiceUnion{OfString: param.NewOpt("alloy")}})
	if err != nil {
		t.Fatal(err)
	}
	defer audio.Body.Close()
	if sound, err := io.ReadAll(audio.Body); err != nil || len(sound) != 400_000 || audio.Header.Get("Content-Type") != "audio/mpeg" {
		t.Errorf("speech: %d bytes of %s, %v", len(sound), audio.Header.Get("Content-Type"), err)
	}
	if images, err := client.Images.Generate(ctx, openai.ImageGenerateParams{Prompt: "a harbour", Model: "media"}); err != nil || images.Data[0].B64JSON != "aGk=" {
		t.Errorf("images %v, %v", images, err)
	}
}
