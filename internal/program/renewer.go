package program

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/settings"
)

// renewer gives each new connection the certificates, keys and password as they are now (S4). It
// takes password_file and password_command, which are ours and not the server's, out of cfg.
func renewer(address string, cfg *pgx.ConnConfig) (func(context.Context, *pgx.ConnConfig) error, error) {
	file := cfg.RuntimeParams["password_file"]
	command := strings.Fields(cfg.RuntimeParams["password_command"])
	delete(cfg.RuntimeParams, "password_file")
	delete(cfg.RuntimeParams, "password_command")
	var password settings.Source
	field := "password_file"
	switch {
	case file != "" && len(command) > 0:
		return nil, errors.New("password_file: must be empty if password_command is set")
	case file != "":
		password = settings.FromFile(file)
	case len(command) > 0:
		password = settings.FromCommand(command)
		field = "password_command"
	}
	return func(ctx context.Context, c *pgx.ConnConfig) error {
		now, err := pgx.ParseConfig(address)
		if err != nil {
			return errors.New("the address's certificate, key or authorities cannot be read" +
				parseReason(address, err))
		}
		renewAuthorities(c.TLSConfig, now.TLSConfig)
		for i := range min(len(c.Fallbacks), len(now.Fallbacks)) {
			renewAuthorities(c.Fallbacks[i].TLSConfig, now.Fallbacks[i].TLSConfig)
		}
		c.Password = now.Password
		if password != nil {
			if c.Password, err = password(ctx); err != nil {
				return fmt.Errorf("%s: %w", field, err)
			}
		}
		return nil
	}, nil
}

// renewAuthorities gives a connection, whose configuration is its own, the authorities as they are
// now. Its client's certificate and key are read anew by pgx (5.13), which keeps where they are
// beside this very configuration: another one would have none.
func renewAuthorities(of, now *tls.Config) {
	if of == nil || now == nil {
		return
	}
	of.RootCAs = now.RootCAs
	of.VerifyPeerCertificate = now.VerifyPeerCertificate
}
