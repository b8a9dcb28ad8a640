package main

import (
	"encoding/json"
	"strconv"
	"time"
)

// duration is a time.Duration in the format of serde.
type duration time.Duration

type parts struct {
	Secs  int64 `json:"secs"`
	Nanos int64 `json:"nanos"`
}

func (d *duration) UnmarshalJSON(data []byte) error {
	var parts parts
	err := json.Unmarshal(data, &parts)
	*d = duration(time.Duration(parts.Secs)*time.Second + time.Duration(parts.Nanos))
	return err
}

func (d duration) MarshalJSON() ([]byte, error) {
	second := duration(time.Second)
	return json.Marshal(parts{Secs: int64(d / second), Nanos: int64(d % second)})
}

// config is the argument that a worker is started with.
type config struct {
	Subject string   `json:"subject"`
	URL     string   `json:"url"`
	Lease   duration `json:"lease"`
}

// order is a variant of the enum of orders in Rust: a string, or an object with one field.
type order struct {
	kind      string
	arguments json.RawMessage
}

func (o *order) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &o.kind) == nil {
		return nil
	}
	var variant map[string]json.RawMessage
	err := json.Unmarshal(data, &variant)
	for o.kind, o.arguments = range variant {
	}
	return err
}

// names are those of the tasks of a load: one for all, or a prefix and the number of the task.
type names struct {
	One  *string
	Each *string
}

func (n names) of(task int) string {
	if n.One != nil {
		return *n.One
	}
	return numbered(*n.Each, task)
}

func numbered(prefix string, number int) string {
	return prefix + "-" + strconv.Itoa(number)
}

// loadOrder makes tasks acquire and release repeatedly.
type loadOrder struct {
	Names names `json:"names"`
	Tasks int   `json:"tasks"`
	Span  struct {
		WarmUp   duration `json:"warm_up"`
		Measured duration `json:"measured"`
	} `json:"span"`
}

// rangeOrder is about many names, numbered from From. Wait has Names of them.
type rangeOrder struct {
	Prefix string `json:"prefix"`
	From   int    `json:"from"`
	Names  int    `json:"names"`
	Count  int    `json:"count"`
}

// load holds the results of a load: see benches/src/measure/load.rs.
type load struct {
	Pairs     []uint64    `json:"pairs"`
	Took      duration    `json:"took"`
	Waits     [][2]uint64 `json:"waits"`
	AllPairs  uint64      `json:"all_pairs"`
	HandOvers uint64      `json:"hand_overs"`
	Failures  uint64      `json:"failures"`
	Reason    *string     `json:"reason"`
}

// answer is a variant of the enum of answers in Rust, with one field.
type answer map[string]any

// done is the variant without a field.
const done = "Done"

func failed(err error) answer {
	return answer{"Failed": err.Error()}
}
