// Command lockcore-bench-go measures lock libraries for Go. It is a worker of the benchmark in
// benches/: it reads orders and writes answers, one JSON value a line, as benches/src/worker does.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "lockcore-bench-go:", err)
		os.Exit(1)
	}
}

// serve carries out orders until there are no more.
func serve() error {
	if len(os.Args) != 3 || os.Args[1] != "worker" {
		return errors.New("usage: lockcore-bench-go worker CONFIG")
	}
	var config config
	if err := json.Unmarshal([]byte(os.Args[2]), &config); err != nil {
		return err
	}
	answers := json.NewEncoder(os.Stdout)
	library, err := connect(config)
	if err != nil {
		return answers.Encode(failed(err))
	}
	if err := answers.Encode(done); err != nil {
		return err
	}
	session := session{library: library}
	orders := bufio.NewReader(os.Stdin)
	for {
		line, err := orders.ReadBytes('\n')
		if err != nil {
			// A worker ends at the end of its input.
			return nil
		}
		if err := answers.Encode(session.answer(line)); err != nil {
			return err
		}
	}
}
