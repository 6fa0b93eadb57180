package main

import (
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc"

	"github.com/kvoracle/kvoracle/client"
)

// securityFlags say how the connection is protected and who asks.
type securityFlags struct {
	TLS           bool   `name:"tls" help:"Speak TLS; any of the other TLS flags says so too." env:"KVORACLE_TLS"`
	TLSCA         string `name:"tls-ca" help:"PEM file with the authorities of the oracle's certificate; otherwise the system's." env:"KVORACLE_TLS_CA" placeholder:"FILE"`
	TLSCert       string `name:"tls-cert" help:"PEM file with a certificate to show." env:"KVORACLE_CLIENT_CERT" placeholder:"FILE"`
	TLSKey        string `name:"tls-key" help:"PEM file with its key." env:"KVORACLE_CLIENT_KEY" placeholder:"FILE"`
	TLSServerName string `name:"tls-server-name" help:"Whom the oracle's certificate must name; otherwise the host of --server." env:"KVORACLE_TLS_SERVER_NAME" placeholder:"NAME"`
	Token         string `help:"Bearer token; better by environment or file than as a flag." env:"KVORACLE_TOKEN" placeholder:"TOKEN"`
	TokenFile     string `help:"File with the bearer token." env:"KVORACLE_TOKEN_FILE" placeholder:"FILE"`
}

// dialOptions are for a connection to the server. A token goes to another machine over TLS only.
func (f *securityFlags) dialOptions(server string) ([]grpc.DialOption, error) {
	s := client.Security{
		CAFile: f.TLSCA, CertFile: f.TLSCert, KeyFile: f.TLSKey, ServerName: f.TLSServerName, Token: f.Token, TokenFile: f.TokenFile,
	}
	s.Plaintext = !f.isTLS()
	if s.Plaintext && f.Token+f.TokenFile != "" && !isLoopback(server) {
		return nil, fmt.Errorf("the token would travel in plain to %s: want --tls, or --tls-ca", server)
	}
	return s.DialOptions()
}

// isTLS says whether any of the flags asks for TLS.
func (f *securityFlags) isTLS() bool {
	return f.TLS || f.TLSCA+f.TLSCert+f.TLSKey+f.TLSServerName != ""
}

// isLoopback says whether an address is surely on this machine.
func isLoopback(server string) bool {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
