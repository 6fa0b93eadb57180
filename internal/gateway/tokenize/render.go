package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/kvoracle/kvoracle/internal/gateway/prompt"
)

// renderPath is where vLLM says what it makes of a request, as it is; empty: nowhere.
func renderPath(kind prompt.Kind, r *prompt.Request, body [][]byte) string {
	switch kind {
	case prompt.Chat:
		return "/v1/chat/completions/render"
	case prompt.Messages:
		return "/v1/messages/render"
	case prompt.Responses:
		return "/v1/responses/render"
	case prompt.Completions:
		if isOneText(r, body) {
			return "/v1/completions/render"
		}
	case prompt.None, prompt.Embeddings, prompt.Generate:
	}
	return ""
}

// isOneText says that a prompt is a text and not several.
func isOneText(r *prompt.Request, body [][]byte) bool {
	text := r.Prompt.Append(nil, body)
	return len(text) > 0 && text[0] == '"'
}

// errUnserved says that the engine has no such door.
var errUnserved = errors.New("tokenize: the engine does not serve /render")

// render gives an engine the whole request and gets the tokens it would compute.
func (c *Client) render(ctx context.Context, path string, body [][]byte) (answer, error) {
	length := 0
	pieces := make([]io.Reader, len(body))
	for i, p := range body {
		pieces[i] = bytes.NewReader(p)
		length += len(p)
	}
	resp, err := c.post(ctx, path, io.MultiReader(pieces...), length)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	in := c.limited(resp)
	if resp.StatusCode != http.StatusOK {
		return answer{}, refused(resp, in)
	}
	// One for each prompt; a chat has one, and it is no list.
	var answers []rendered
	text, err := io.ReadAll(in)
	if err != nil {
		return answer{}, err
	}
	if text = bytes.TrimLeft(text, " \t\r\n"); len(text) > 0 && text[0] == '[' {
		err = json.Unmarshal(text, &answers)
	} else {
		answers = make([]rendered, 1)
		err = json.Unmarshal(text, &answers[0])
	}
	if err != nil {
		return answer{}, err
	}
	if len(answers) != 1 {
		return answer{}, errAnswer
	}
	ids, err := c.checked(answers[0].TokenIDs)
	if err != nil {
		return answer{}, err
	}
	items, err := answers[0].Features.Items(len(ids))
	return answer{ids, items}, err
}

// rendered is what is wanted of vLLM's GenerateRequest.
type rendered struct {
	TokenIDs []uint32        `json:"token_ids"`
	Features prompt.Features `json:"features"`
}

// refused tells an engine without this door from one that refuses the request. vLLM answers 403 unless it was started with
// --enable-scale-out; older ones have no such path, which FastAPI words otherwise than vLLM an unknown model.
func refused(resp *http.Response, in io.Reader) error {
	text, _ := io.ReadAll(in)
	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return errUnserved
	case http.StatusNotFound:
		var fault struct {
			Error json.RawMessage `json:"error"`
		}
		if json.Unmarshal(text, &fault) != nil || fault.Error == nil {
			return errUnserved
		}
	}
	return fmt.Errorf("%w: %s", errAnswer, resp.Status)
}
